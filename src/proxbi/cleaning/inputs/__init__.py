"""From what people give (tables, arrays, words) to what the method takes."""
