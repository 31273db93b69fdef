"""Label cleaning as a bilevel problem."""

from proxbi.cleaning.problem import hyper_cleaning as hyper_cleaning
