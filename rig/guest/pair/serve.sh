say serving
serve
