"""Commands for developers: the demo and reports. Not part of the installed package."""
