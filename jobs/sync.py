"""What spark-submit runs: `spark-submit --py-files tidemark.zip jobs/sync.py JOB.yaml [--set …]`, the same as
`tidemark run JOB.yaml`."""

import sys

from jobs.cli import main

if __name__ == "__main__":
    main(["run", *sys.argv[1:]])
