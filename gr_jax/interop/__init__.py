"""Other projects' files: Hugging Face folders in and out."""
