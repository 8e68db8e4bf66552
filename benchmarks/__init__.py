"""Speed and memory, measured next to named peers in one run: `python -m benchmarks [SUBJECT]... [--rows N]`.

Compare figures of one run only: both sides had the same machine. Figures of two machines can't be compared.
"""
