"""The CustomResourceDefinition: made from the models, and compared with an installed one."""
