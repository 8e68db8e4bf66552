"""What spark-submit runs: `spark-submit --py-files tidemark.zip jobs/sync.py JOB.yaml [--set …]`, the same as
`tidemark run JOB.yaml`."""

import os
import sys

# Python looks for modules in a script's own folder first, where ours would hide others of the same name: `inspect`.
_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _here]

from jobs.cli import main  # noqa: E402

if __name__ == "__main__":
    main(["run", *sys.argv[1:]])
