"""What somebody outside asks of ranks while they train."""
