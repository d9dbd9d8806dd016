"""The CustomResourceDefinition: generates it from the models, and compares it with an installed
one.
"""
