"""`python -m matchserve`."""

from matchserve.cli import main

if __name__ == "__main__":
    main()
