"""`python -m depickle`: the command line."""

from .cli import main

raise SystemExit(main())
