"""The same topology over history on Spark, handed over to the live application.

Reserved for the bridge: nothing is exported yet, and importing it does not import pyspark.
"""
