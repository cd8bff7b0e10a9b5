"""Reference pages made from the code while the site is built."""
