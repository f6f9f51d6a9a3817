"""Photos and videos explained into a folder, with a page to look through."""
