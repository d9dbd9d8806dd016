"""Programs for developers and releases; the product does not import them."""
