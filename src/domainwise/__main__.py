"""`python -m domainwise` is the command line."""

from domainwise.cli import main

if __name__ == "__main__":
    main()
