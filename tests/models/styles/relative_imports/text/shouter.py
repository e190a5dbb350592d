from . import tools


class Shouter:
    def shout(self, text):
        return tools.upper(text)
