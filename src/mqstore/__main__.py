"""`python -m mqstore`, the same as the `mqstore` command."""

from mqstore.cli.entry import main

if __name__ == "__main__":
    main()
