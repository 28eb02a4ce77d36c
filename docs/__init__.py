"""The pages of the site; generate/ writes those that come from classes and measured tables."""
