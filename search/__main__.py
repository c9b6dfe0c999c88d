"""`python -m search`: the command line, where no script of that name is installed."""

from search.cli.main import main

if __name__ == "__main__":
    main()
