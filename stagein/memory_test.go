package stagein
