"""Tools of everyday life: weather, travel, food, home, health, people.

See `catalogue` for the form.
"""

from __future__ import annotations

TEXT = """
get_weather | Current weather in a city | city:str@city, unit:enum(celsius,fahrenheit)=celsius
  What is the weather like in {city*}?
  How's the weather in {city*} right now?
  Tell me the current weather in {city} in {unit}.
weather_forecast | Weather forecast for the coming days | city:str@city, days:int@2..14=3
  What will the weather be in {city*} over the next {days} days?
  Give me a {days} day forecast for {city*}.
  Forecast for {city*}, please.
get_air_quality | Air quality index at a place | location:str@city
  How is the air quality in {location*}?
  Check the air quality index for {location*}.
sunrise_time | Sunrise and sunset for a city on a date | city:str@city, date:str@date
  When does the sun rise in {city*} on {date}?
  I need the sunrise time for {city*} on {date}.
get_tide_table | Tide table of a harbor | harbor:str@city, date:str@date
  Show the tide table of {harbor*} for {date}.
  What are the tides at {harbor} on {date}?
!pollen_level_report | Pollen level at a place | place:str@city, plant:enum(grass,birch,ragweed)
  What is the {plant} pollen level in {place*}?
  Report the {plant} pollen level at {place*} please.
  How bad is the {plant} pollen in {place}?
search_flights | Search flights between two cities | origin:str@city, destination:str@city, date:str@date, max_price:float@80..900=1000.0
  Find flights from {origin} to {destination} on {date}.
  I want to fly from {origin} to {destination} on {date} for at most {max_price} dollars.
  Search flights to {destination} from {origin} on {date}.
book_hotel | Book a hotel room | hotel:str@hotel, guests:int@1..6, check_in:str@date, nights:int@1..21=1
  Book the {hotel} for {guests} guests from {check_in} for {nights} nights.
  Reserve a room at {hotel} for {guests} people, check in on {check_in}.
find_hotels | Find hotels in a city | city:str@city, stars:int@1..5=3, pool:bool=false
  Find hotels in {city*}.
  Look for {stars} star hotels in {city}.
  Show me hotels in {city} {pool?with a pool/without a pool}.
rent_car | Rent a car | city:str@city, days:int@1..30, car_type:enum(compact,suv,van,convertible)=compact
  Rent a {car_type} in {city} for {days} days.
  I need a rental car in {city} for {days} days.
get_train_schedule | Train departures between two stations | departure:str@city, arrival:str@city, time:str@time
  When do trains leave from {departure} to {arrival} after {time}?
  Show the train schedule from {departure} to {arrival} at {time}.
order_taxi | Order a taxi to an address | pickup:str@street, dropoff:str@street, passengers:int@1..8=1
  Order a taxi from {pickup} to {dropoff}.
  Get me a cab from {pickup} to {dropoff} for {passengers} passengers.
get_visa_requirements | Visa requirements of a country | nationality:str@country, destination:str@country
  Does a citizen of {nationality} need a visa for {destination}?
  Visa requirements for {destination} with nationality {nationality}?
convert_timezone | Convert a time between zones | time:str@time, from_zone:str@city, to_zone:str@city
  What is {time} in {from_zone} in {to_zone} time?
  Convert {time} from {from_zone} to {to_zone} time.
list_attractions | Tourist attractions of a city | city:str@city, limit:int@2..20=5
  What are the tourist attractions in {city*}?
  List {limit} attractions in {city}.
!reserve_ferry_seat | Reserve seats on a ferry | harbor:str@city, island:str@city, seats:int@2..40
  Reserve {seats} seats on the ferry from {harbor} to {island}.
  I need {seats} ferry seats from {harbor} to the island of {island}.
  Please reserve a ferry for {seats} people from {harbor} to {island}.
!get_luggage_allowance | Luggage allowance of an airline | airline:str@company, cabin:enum(economy,business,first)=economy
  What is the luggage allowance of {airline*}?
  How much luggage does {airline} allow in {cabin}?
  Luggage allowance for {cabin} at {airline}, please.
!nearest_charging_station | Nearest charging station for an electric car | address:str@street, radius_km:float@1..50=5.0
  Where is the nearest charging station to {address}?
  Find a charging station within {radius_km} km of {address}.
  Show me a charging station near {address}, radius {radius_km} km.
find_restaurants | Find restaurants by cuisine | cuisine:str@cuisine, city:str@city, open_now:bool=false
  Find {cuisine} restaurants in {city*}.
  Where can I eat {cuisine} food in {city}?
  Which {cuisine} restaurants in {city} are open {open_now?now/at any time}?
book_table | Book a table at a restaurant | restaurant:str@restaurant, people:int@1..12, time:str@time
  Book a table at {restaurant} for {people} people at {time}.
  Reserve a table for {people} at {restaurant} at {time}.
search_recipes | Search recipes by ingredient | ingredient:str@food, max_minutes:int@10..120=60, vegetarian:bool=false
  Find a recipe with {ingredient*}.
  What can I cook with {ingredient} in {max_minutes} minutes?
  Search {vegetarian?vegetarian/non-vegetarian} recipes with {ingredient}.
get_nutrition | Nutrition facts of a food | food:str@food, grams:int@50..500=100
  What are the nutrition facts of {food*}?
  Nutrition of {grams} grams of {food}?
convert_cooking_units | Convert cooking units | amount:float@0.5..20, from_unit:enum(cup,tablespoon,teaspoon,ounce), to_unit:enum(gram,milliliter,liter)
  How many {to_unit} are {amount} {from_unit}?
  Convert {amount} {from_unit} to {to_unit}.
order_pizza | Order a pizza | size:enum(small,medium,large), toppings:list@food, address:str@street
  Order a {size} pizza with {toppings} to {address}.
  I'd like a {size} pizza with {toppings} delivered to {address}.
suggest_wine | Suggest a wine for a dish | dish:str@food, max_price:float@8..80=20.0
  Which wine goes well with {dish*}?
  Suggest a wine for {dish} under {max_price} dollars.
!find_food_substitute | Find a substitute for an ingredient | ingredient:str@food, allergy:str@food
  What can I use as a substitute for {ingredient}? I have an allergy to {allergy}.
  Find a substitute for {ingredient}, my allergy is {allergy}.
  Substitute {ingredient} please, I have a {allergy} allergy.
!scale_recipe_servings | Scale a recipe to a number of servings | recipe:str@food, servings:int@2..40
  Scale the {recipe} recipe to {servings} servings.
  I want {servings} servings of the {recipe} recipe.
  Change the recipe for {recipe} to {servings} servings.
turn_on_light | Turn on the light in a room | room:str@room, brightness:int@10..100=100
  Turn on the light in the {room*}.
  Switch on the {room} light at {brightness} percent.
turn_off_light | Turn off the light in a room | room:str@room
  Turn off the light in the {room*}.
  Lights off in the {room*}, please.
set_thermostat | Set the temperature of a room | room:str@room, temperature:float@15..26
  Set the {room} to {temperature} degrees.
  Make it {temperature} degrees in the {room}.
lock_door | Lock or unlock a door | door:str@room, locked:bool
  {locked?Lock/Unlock} the {door} door.
  Please {locked?lock/unlock} the door of the {door}.
start_vacuum | Start the robot vacuum | rooms:list@room, mode:enum(quiet,normal,turbo)=normal
  Vacuum the {rooms}.
  Start the vacuum in {mode} mode in the {rooms}.
set_blinds | Set the position of blinds | room:str@room, position:int@0..100
  Set the blinds in the {room} to {position} percent.
  Move the {room} blinds to position {position}.
play_on_speaker | Play something on a speaker | speaker:str@room, media:str@song, volume:int@5..90=40
  Play {media} on the {speaker} speaker.
  Play {media} in the {speaker} at volume {volume}.
!water_garden_zone | Water a zone of the garden | zone:str@room, minutes:int@3..60
  Water the {zone} zone for {minutes} minutes.
  Please water the garden zone {zone} for {minutes} minutes.
  Give the {zone} zone {minutes} minutes of water.
!get_power_usage | Power usage of a device | device:str@device, period:enum(today,week,month)=today
  How much power does the {device*} use?
  What is the power usage of the {device} this {period}?
  Power usage of {device} for the {period}, please.
log_meal | Log a meal | food:str@food, calories:int@50..1200, meal:enum(breakfast,lunch,dinner,snack)
  Log {food} with {calories} calories for {meal}.
  I had {food} for {meal}, {calories} calories.
log_workout | Log a workout | activity:str@activity, minutes:int@5..180
  I did {minutes} minutes of {activity}.
  Log {activity} for {minutes} minutes.
calculate_bmi | Body mass index from weight and height | weight_kg:float@45..120, height_cm:int@145..205
  What is my BMI at {weight_kg} kg and {height_cm} cm?
  Compute the body mass index for {weight_kg} kg and {height_cm} cm.
book_doctor | Book an appointment with a doctor | doctor:str@person, date:str@date, reason:str@symptom
  Book an appointment with doctor {doctor} on {date} because of {reason}.
  I need to see doctor {doctor} on {date} about my {reason}.
get_drug_info | Information about a drug | drug:str@drug
  What is {drug*} used for?
  Give me information about the drug {drug*}.
check_drug_interaction | Check the interaction of two drugs | first_drug:str@drug, second_drug:str@drug
  Can I take {first_drug} with {second_drug}?
  Check the interaction between {first_drug} and {second_drug}.
calories_burned | Calories burned by an activity | activity:str@activity, minutes:int@5..180, weight_kg:float@45..120=70.0
  How many calories do I burn with {minutes} minutes of {activity}?
  Calories burned by {activity} for {minutes} minutes at {weight_kg} kg?
track_sleep | Record sleep times | bedtime:str@time, wake_time:str@time
  I went to bed at {bedtime} and woke up at {wake_time}.
  Record my sleep from {bedtime} to {wake_time}.
symptom_checker | Possible causes of a symptom | symptom:str@symptom, age:int@2..95
  What could cause {symptom} at age {age}?
  I am {age} years old and have {symptom}, what is it?
!schedule_vaccine_dose | Schedule a vaccine dose for a patient | patient:str@person, vaccine:str@drug, date:str@date
  Schedule the {vaccine} vaccine for {patient} on {date}.
  Patient {patient} needs a dose of the {vaccine} vaccine on {date}.
  Please schedule a vaccine dose of {vaccine} for {patient}, date {date}.
!blood_pressure_entry | Save a blood pressure entry | systolic:int@95..180, diastolic:int@55..110
  Save a blood pressure of {systolic} over {diastolic}.
  My blood pressure is {systolic} over {diastolic}, save it.
  Blood pressure entry: systolic {systolic}, diastolic {diastolic}.
send_message | Send a text message to a contact | recipient:str@person, text:str@note
  Send {recipient} the message '{text}'.
  Text {recipient}: {text}
  Message {recipient} saying {text}.
call_contact | Call a contact | name:str@person, speaker:bool=false
  Call {name*}.
  Phone {name} {speaker?with the speaker on/with the speaker off}.
send_email | Send an email | to:str@email, subject:str@note
  Send an email to {to} with the subject {subject}.
  Email {to}, subject '{subject}'.
create_event | Create a calendar event | title:str@event, date:str@date, time:str@time
  Create an event {title} on {date} at {time}.
  Put {title} in my calendar for {date} at {time}.
  Schedule {title} on {date}, {time}.
delete_event | Delete a calendar event | title:str@event, date:str@date
  Delete the event {title} on {date}.
  Remove {title} from my calendar on {date}.
list_events | List calendar events of a day | date:str@date
  What is in my calendar on {date*}?
  List my events for {date*}.
set_alarm | Set an alarm | time:str@time, label:str@event=alarm
  Wake me up at {time}.
  Set an alarm for {time*}.
  Set an alarm at {time} called {label}.
set_timer | Start a timer | minutes:int@1..120, label:str@food=timer
  Set a timer for {minutes} minutes.
  Start a {minutes} minute timer for {label}.
add_reminder | Add a reminder | text:str@note, time:str@time
  Remind me to {text} at {time}.
  At {time} remind me to {text}.
add_todo | Add a task to the to-do list | task:str@note, priority:enum(low,medium,high)=medium
  Add {task} to my to-do list.
  Add the task {task} with {priority} priority.
  New {priority} priority task: {task}.
!invite_guest_to_event | Invite a guest to an event | guest:str@person, event:str@event
  Invite {guest*} to the {event}.
  Please invite the guest {guest} to {event}.
  I'd like {guest} as a guest at the {event} event.
!block_phone_number | Block a phone number | number:str@phone, reason:enum(spam,fraud,private)=spam
  Block the number {number*}.
  Block the phone number {number} for {reason}.
  Please block {number}, reason {reason}.
"""
