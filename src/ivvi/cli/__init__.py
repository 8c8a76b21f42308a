"""The verbs of the command line, one module each: options in, library called, result shown."""
