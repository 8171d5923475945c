"""Documentation, and the script that draws its pictures."""
