"""How steps are taken: tried with a model, batch by batch, and evaluated between them."""
