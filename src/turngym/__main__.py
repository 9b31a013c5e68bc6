"""`python -m turngym`: the command line without its script."""

from turngym.cli import main

if __name__ == "__main__":
    main()
