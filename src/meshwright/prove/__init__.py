"""Whether two recorded trainings are one: the judge behind `meshwright prove`."""
