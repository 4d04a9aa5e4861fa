"""JSON answers (`+task=json_schema`): records with a request, a schema and a correct answer."""
