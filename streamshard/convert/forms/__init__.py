"""Forms: how the records of one kind of input lie in a local file, and how inputs are brought into such a form."""
