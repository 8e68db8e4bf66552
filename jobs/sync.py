"""The script for spark-submit: `spark-submit --py-files tidemark.zip jobs/sync.py JOB.yaml [--set …]` does the same as
`tidemark run JOB.yaml [--set …]`."""

import os
import sys

# Python looks for modules in the script's own folder first. Our files there would hide other modules of the same name.
_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _here]

from tidemark.jobs.cli import main  # noqa: E402

if __name__ == "__main__":
    main(["run", *sys.argv[1:]])
