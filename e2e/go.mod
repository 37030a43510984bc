module lmwarden/e2e

go 1.26
