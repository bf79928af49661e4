"""Reports in words, tables, pages and traces. No report knows them."""
