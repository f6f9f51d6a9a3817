"""Where this package reaches into what a library keeps to itself: one file a library.

Each reach states why it is needed and what happens without it, and each file the versions it was
tried with. A reach that a new version takes away costs time and never a result: its function then
goes a slower way, by public names alone. `tests/compat` names the reach when that happens.

A file here imports the library that it is about, so import the files and not this package.
"""
