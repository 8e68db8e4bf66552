"""Runs jobs: the command line, the loop over epochs, Spark, the data source. The only package that imports all others."""
