"""`python -m compolens`: the command, also where the folder of installed commands is not on PATH."""

from compolens.cli.__main__ import program

if __name__ == "__main__":
    program()
