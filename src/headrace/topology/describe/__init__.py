"""A topology as text, as a picture and as Mermaid source."""
