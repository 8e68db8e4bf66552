"""Tools around the job: private database servers, demo, reports. Not part of the installed package."""
