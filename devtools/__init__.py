"""Code that tests, scripts and benchmarks share: private database servers and databases, job processes, logs to read.

It is not part of the installed package. It imports neither tests nor scripts nor benchmarks.
"""
