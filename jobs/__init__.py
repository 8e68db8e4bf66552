"""The composition root: the only package that knows all the others. Command line, Spark job, data source."""
