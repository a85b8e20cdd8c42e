"""One module a library, each with the same few functions, so that the clock in ``benchmarks.timing`` is one for all.

A module imports its own library only, and inside its functions. It has those of these that the library can do,
the way its documentation recommends:

``samples(source)``
    shuffled, one process: an iterable of dicts, with ``shuffle=False`` in stored order.
``batches(source, workers)``
    shuffled, for training: an iterable, iterated once an epoch, of dicts of columns: integers a torch tensor,
    strings and bytes lists, pictures a uint8 tensor. ``keep=True``: workers stay for the next epoch.
``save(loader)``, ``resume(source, workers, state)``
    the state of what ``batches`` gave, and what goes on from it.
``access(source)``
    what can be indexed by number.
``write(source, samples, out)``
    samples in memory to a finished dataset at ``out``.
``stored(source, out)``
    what is at ``out`` then, as dicts, in any order.
"""
