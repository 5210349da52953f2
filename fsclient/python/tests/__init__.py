"""The tests of the package. They need nothing but Python and torch; a daemon is faked."""

import logging

logging.getLogger("bivouac").addHandler(logging.NullHandler())
