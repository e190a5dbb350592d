from .shouter import Shouter
