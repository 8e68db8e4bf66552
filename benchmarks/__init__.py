"""Speed and memory, measured beside named peers in one run: `python -m benchmarks [SUBJECT]... [--rows N]`.

Figures of one run can be compared with each other, for both sides had the same machine; those of two machines can't.
"""
