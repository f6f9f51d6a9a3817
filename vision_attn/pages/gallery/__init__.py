"""The page of very many photos: by class, with search."""
