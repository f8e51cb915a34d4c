"""`python -m delayd` is the `delayd` command."""

from delayd.cli.main import main

if __name__ == "__main__":
    main()
