"""``python -m scatlas.workflow.command_line``: the command, where it is not on the PATH."""

import sys

from scatlas.workflow.command_line.main import main

if __name__ == "__main__":
    sys.exit(main())
