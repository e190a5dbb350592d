class Counter:
    def count(self, text):
        return len(text)
