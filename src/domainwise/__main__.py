"""`python -m domainwise` is the command line; of the processes that torchrun starts only the first prints."""

from domainwise.cli import main
from domainwise.runs.ranks import only_first_speaks

if __name__ == "__main__":
    with only_first_speaks():
        main()
