"""What the HTML pages of all packages share: their look, and figures as markup."""
