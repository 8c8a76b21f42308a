"""What tests of reports share: a column name that must do nothing, and a reader of tags."""

from html.parser import HTMLParser

EVIL = "<script>alert(1)</script>"


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def parse(text):
    """Return the tags of a page with their attributes, in order."""
    reader = _Tags()
    reader.feed(text)
    return reader.found


def ids_of(text):
    """Return the ids of a page."""
    return [attributes["id"] for _, attributes in parse(text) if "id" in attributes]
