"""`python -m vision_attn COMMAND ...`: the command line, where `vision-attn` is not on the path."""

from vision_attn.cli import script

if __name__ == "__main__":
    script()
