"""Learn decisions from logs that lie.

Something nobody recorded moved both the action and the outcome; an instrument undoes it.
The public names (`__init__.pyi`) are imported when they are first used, so that
``import ivvi`` costs nothing.
"""

import lazy_loader

from ivvi.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
