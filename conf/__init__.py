"""The job file: `load.load_job_file` reads it into a `model.JobFile`; `redaction` keeps its secrets out of all
output.
"""
